"""Hands one call of ansible-playbook to the process that has Ansible loaded, and ends with its exit status.

`warm_client.py SERVER FOLDER ARGUMENTS...`: SERVER is the folder of that process's socket, FOLDER that of the run.
ansible-runner starts it in place of ansible-playbook. It passes on its own stdin, stdout, stderr, working folder and
environment. It imports only modules that are part of the interpreter: started with `-I -S` it costs 15 ms of CPU.
Ends with `LOST` when the other process ended before the playbook did.
"""

import _socket
import marshal
import os
import sys

LOST = 75  # as EX_TEMPFAIL: try again


def main() -> int:
    server, *words = sys.argv[1:]
    request = marshal.dumps((os.getcwd(), words, dict(os.environ)))  # noqa: PTH109, pathlib takes as long as all the rest
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        # Through the folder's descriptor: its path may be longer than a socket's address.
        link.connect(f"/proc/self/fd/{os.open(server, os.O_RDONLY)}/socket")
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
        link.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        answer = link.recv(16)
    except OSError:
        answer = b""
    return int(answer) if answer else LOST


if __name__ == "__main__":
    sys.exit(main())
