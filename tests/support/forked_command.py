"""A command that is forked from a process which has loaded its modules (`forking.py`): asks for it
at a socket, lends it its own input and outputs, and ends with its exit code.

It starts without the site's packages, in a few milliseconds.
"""

import json
import os
import socket
import sys


def main(path: str, module: str, *arguments: str) -> int:
    """Waits for the end of the command. 1 if it cannot be asked for."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        wanted = {
            "module": module,
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to load
        }
        text = f"{json.dumps(wanted)}\n".encode()
        sent = socket.send_fds(asked, [text], [0, 1, 2])
        asked.sendall(text[sent:])
        return int(asked.recv(8) or b"1")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
