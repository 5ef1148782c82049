"""Start a command's Pythons from a process that has imported torch already.

In the second and later trials of a command, `delegate` hands a Python process over just after it came up: it tells the
fork server what it is and stays as a proxy, and the server forks a child that becomes the program. To whoever started
the process nothing changes: the same process ends with the same code, and passes signals on. What is unusual is
refused, and the process goes on by itself, as without us.

    describe    what the first trial's training process was and had imported
    server      the main program: imports that, and then waits; `python server.py SOCKET DESCRIPTION`
    importing   importing where a fork is safe afterwards, with `hazards` and `reads`
    proxy       the process that hands itself over, and waits; with `identity` and `wire`
    admission   whether a process is one that a fork of the server may stand for
    serving     the server's loop, and `keeper` a process for each program: how it ends, and that nothing of it is left
    program     how a fork becomes the program: `adoption` the process around it, `streams` its streams, `main` its code

A forked program is not the same in everything: its process has another id than the one that was started, its parent is
the keeper, it has a session of its own and so no terminal to control it, and below its first frame is one of ours.
"""
