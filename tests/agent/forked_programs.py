# ruff: noqa: E501 - programs as people write them
"""What a program sees of itself, as text: it is the same in a fork as in a process of its own."""

IDENTITY = """
import atexit, builtins, json, os, signal, subprocess, sys
print(json.dumps({
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": list(map(str, sys.flags)),
    "executable": sys.executable, "prefix": sys.prefix, "warnoptions": sys.warnoptions,
    "main": [[name, str(type(value))] for name, value in sorted(vars(sys.modules["__main__"]).items())],
    "file": __file__, "name": __name__, "package": __package__, "spec": str(__spec__ and __spec__.name),
    "loader": type(__loader__).__name__, "builtins": __builtins__ is builtins, "own": sys.modules["__main__"] is not None,
    "environ": {name: value for name, value in sorted(os.environ.items()) if not name.startswith("OOMDOCTOR_")},
    "environ of a child": subprocess.check_output("env | grep -v OOMDOCTOR_ | grep -v ^_= | sort", shell=True, text=True),
    "cwd": os.getcwd(), "umask": os.umask(0), "affinity": sorted(os.sched_getaffinity(0)),
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in range(1, 32)],
    "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.fileno(),
                 s.isatty(), type(s.buffer).__name__] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "dunder": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "ours": sorted(name for name in sys.modules if name.startswith("oomdoctor_agent.forking.s")),
    "stdin": sys.stdin.read(),
}, indent=1))
print("to stderr", file=sys.stderr)
"""

ENDINGS = {
    "return": "print('done')",
    "exit": "import sys; sys.exit()",
    "code": "import sys; sys.exit(3)",
    "large code": "import sys; sys.exit(259)",
    "negative code": "import sys; sys.exit(-1)",
    "text": "import sys; sys.exit('a text')",
    "object": "raise SystemExit([1, 2])",
    "os exit": "import os; os._exit(7)",
    "error": "def f():\n    raise ValueError('wrong')\nf()",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error",
    "syntax": "print('never')\ndef f(:\n",
    "encoding": "# coding: latin-1\nprint('\\xe9'.encode())\n",
    "interrupt": "raise KeyboardInterrupt",
    "atexit": "import atexit; atexit.register(print, 'last'); atexit.register(print, 'first'); 1/0",
    "atexit knows": "import atexit, sys\natexit.register(lambda: print(sys.last_value, sys.last_traceback.tb_lineno, "
    "sys.last_traceback.tb_frame.f_code.co_name))\n1/0",
    "excepthook": "import sys\ndef hook(kind, error, tb):\n    print('mine', error, tb.tb_lineno, tb.tb_next)\n"
    "sys.excepthook = hook\n1/0",
    "excepthook leaves": "import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1/0",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()",
    "thread error": "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start()\nt.join()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "unflushed": "import sys; sys.stdout.write('no newline'); sys.stderr.write('nor here')",
    "unclosed": "file = open('written', 'w'); file.write('text')",
    "del": "class D:\n    def __del__(self):\n        print('deleted')\nd = D()",
    "native": "import ctypes; ctypes.CDLL(None).printf(b'from C\\n')",
    "executor": "from concurrent.futures import ThreadPoolExecutor as T\nprint(list(T(2).map(abs, [-1, -2])))",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "import os; os.abort()",
    "handler": "import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    "os.kill(os.getpid(), signal.SIGTERM)\nimport time; time.sleep(9)",
    "warning": "import warnings; warnings.warn('careful')",
    "forked": "import os\npid = os.fork()\nif pid:\n    print(os.waitpid(pid, 0)[1], flush=True)\nelse:\n    raise SystemExit(4)",
    "exec": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1); raise SystemExit(6)'])",
}
