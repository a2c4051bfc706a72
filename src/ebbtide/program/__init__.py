"""The program `ebbtide`: its commands put together, the command `serve`, exit codes and errors.

`main` imports the other modules when it is called, because each worker process imports this module
and does not need them. Not for: what a command does (`ebbtide.cli`).
"""


def main() -> None:
    """The program `ebbtide`."""
    from ebbtide.program.starting import end_when_interrupted

    end_when_interrupted()

    from ebbtide.imports import leave_algebra_alone, leave_pandas_alone

    leave_algebra_alone()
    leave_pandas_alone()

    from ebbtide.program import app

    app.main()
