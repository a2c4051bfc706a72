"""The program as `python -m ebbtide`, and the file for `spark-submit`."""

from ebbtide.program import main

if __name__ == "__main__":
    main()
