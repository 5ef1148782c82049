"""Fork server: start a command's Pythons from a process that has imported torch already.

In the second and later trials of a command, `delegate` hands a Python process over just after it came up: it tells the
fork server what it is and stays as a proxy, and the server forks a child that becomes the program. To whoever started
the process nothing changes: the same process ends with the same code, and passes signals on. What is unusual is
refused, and the process goes on by itself, as without us. A forked program is not the same in everything: its process
has another id than the one that was started, its parent is the process that reaps it, it has a session of its own and
so no terminal to control it, and below its first frame is one of ours.

The agent uses `proxy.delegate`, and what `admission` says of the first trial's process; `server.py` is its main
program, started by the parent. Nothing is imported here, since every Python of a command imports the package.

    proxy       the process that hands itself over and waits, what it says of itself, and the messages to the server
    admission   what the first trial's process was, and whether a fork of the server may stand for another
    importing   importing where a fork is safe afterwards
    serving     the server's start and loop, and the process that reaps a program
    program     how a fork becomes the program, and how it ends
"""
