"""One traceback of two frames as different programs print it; MESSAGE stands for the error."""

from __future__ import annotations

from oomdoctor.results import SourceLine

MAIN = SourceLine("train.py", 90, "<module>", "main(config)")
STEP = SourceLine("/home/ada/proj/loop.py", 12, "step", "loss.backward()")
BOTH = (MAIN, STEP)

PRINTED = {
    "standard": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "marks below the code": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
            ~~~~^^^^^^^^
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
            ^^^^^^^^^^^^^^^
        MESSAGE
        """,
    "several lines of code, as Python 3.13 has them": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
            ~~~~^^
                config,
                ^^^^^^^
            ...<2 lines>...
            )
            ^
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "glued to a progress bar": """
        Epoch 1:   9%|##        | 1/11 [00:01<00:13,  1.33s/it]Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "head and indentation lost": """
        File "train.py", line 90, in <module>
        main(config)
        File "/home/ada/proj/loop.py", line 12, in step
        loss.backward()
        MESSAGE
        """,
    "empty lines in between": """
        Traceback (most recent call last):

          File "train.py", line 90, in <module>

            main(config)

          File "/home/ada/proj/loop.py", line 12, in step

            loss.backward()

        MESSAGE
        """,
    "one line": 'Traceback (most recent call last): File "train.py", line 90, in <module> main(config) ~~~~^^^^ '
    'File "/home/ada/proj/loop.py", line 12, in step loss.backward() MESSAGE',
    "escaped in JSON": '{"error": "Traceback (most recent call last):\\n  File \\"train.py\\", line 90, in <module>\\n'
    '    main(config)\\n  File \\"/home/ada/proj/loop.py\\", line 12, in step\\n    loss.backward()\\nMESSAGE\\n"}',
    "an exception group": """
          + Exception Group Traceback (most recent call last):
          |   File "run.py", line 3, in <module>
          |     asyncio.run(tasks())
          | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
          +-+---------------- 1 ----------------
            | Traceback (most recent call last):
            |   File "train.py", line 90, in <module>
            |     main(config)
            |   File "/home/ada/proj/loop.py", line 12, in step
            |     loss.backward()
            |     ^^^^^^^^^^^^^^^
            | MESSAGE
            +------------------------------------
        """,
    "elastic's table of failures": """
        Root Cause (first observed failure):
        [0]:
          rank      : 0 (local_rank: 0)
          traceback : Traceback (most recent call last):
            File "train.py", line 90, in <module>
              main(config)
            File "/home/ada/proj/loop.py", line 12, in step
              loss.backward()
          MESSAGE
        """,
    "a narrow terminal": """
        Traceback (most recent call last):
          File "tra
        in.py", line 90, in <module>
            main(config)
          File "/home/ada/proj/loop.py", line 12, in
        step
            loss.backward()
        MESSAGE
        """,
    "a handler of logs that breaks before the path": """
        Traceback (most recent call last):
                      File
                    "train.py", line 90, in <module>
                        main(config)
                      File
                    "/home/ada/proj/lo
                    op.py", line 12, in step
                        loss.backward()
        MESSAGE
        """,
    "loguru with values": """
        Traceback (most recent call last):
        > File "train.py", line 90, in <module>
            main(config)
            │    └ {'lr': 0.1}
            └ <function main at 0x7f00>
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
            │    └ <function Tensor.backward at 0x7f01>
            └ tensor(1., grad_fn=<SumBackward0>)
        MESSAGE
        """,
    "a bar that another thread drew": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
        Loading shards: 33%|###     | 1/3 [00:02<00:05]
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "a bar that another thread drew, and the head lost": """
          File "train.py", line 90, in <module>
            main(config)
        Loading shards: 33%|###     | 1/3 [00:02<00:05]
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "elisions by hand": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
        ...
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        ....

        MESSAGE
        """,
    "a cause of another kind": """
        Traceback (most recent call last):
          File "cache.py", line 4, in look_up
            return cache[key]
        KeyError: 'batch 3'

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        MESSAGE
        """,
    "two processes at once": """
        Traceback (most recent call last):
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
          File "train.py", line 90, in <module>
            main(config)
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
            loss.backward()
        MESSAGE
        """,
    "another's traceback in the middle of the head": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
        Traceback (most recent call last):
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
          File "train.py", line 90, in <module>
            loss.backward()
        MESSAGE
        """,
    "a C++ trace before the message ends": """
        Traceback (most recent call last):
          File "train.py", line 90, in <module>
            main(config)
          File "/home/ada/proj/loop.py", line 12, in step
            loss.backward()
        RuntimeError: the engine failed
        frame #0: c10::Error::Error(std::string) + 0x57 (0x7f in /opt/libc10.so)
        frame #1: main + 0x1 (0x7f in python)
        CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has
        """,
    "rich": """
        ╭───────────────────── Traceback (most recent call last) ──────────────────────╮
        │ train.py:90 in <module>                                                      │
        │                                                                              │
        │   89 if __name__ == "__main__":                                              │
        │ ❱ 90 │   main(config)                                                        │
        │   91                                                                         │
        │                                                                              │
        │ /home/ada/proj/                                                              │
        │ loop.py:12 in step                                                           │
        │                                                                              │
        │ ❱ 12 │   loss.backward()                                                     │
        │ ╭────────── locals ──────────╮                                               │
        │ │ loss = tensor(1.)          │                                               │
        │ ╰────────────────────────────╯                                               │
        ╰──────────────────────────────────────────────────────────────────────────────╯
        MESSAGE
        """,
    "rich without its box, on an old terminal": """
        train.py:90 in <module>

          89 if __name__ == "__main__":
        > 90     main(config)

        /home/ada/proj/loop.py:12 in step

        >  12     loss.backward()

        MESSAGE
        """,
    "pytest": """
        train.py:90: in <module>
            main(config)
        /home/ada/proj/loop.py:12: in step
            loss.backward()
        E   MESSAGE
        """,
}
