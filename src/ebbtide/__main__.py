"""`python -m ebbtide`; and the file that `spark-submit` is given."""

from ebbtide.cli import main

if __name__ == "__main__":
    main()
