"""Remedies against running out of memory: what each is, how a worker applies it, and how a file is edited for it.

`catalogue` says what each is, without torch. The worker applies them by name through `applied`, which knows the files
beside it: `blocks` (checkpointing, freezing, LoRA), `compiled`, `linear_cross_entropy`, `optimizers` and
`tensors` (types, the host). `file_edit` edits the file as was applied, `trainers` has what frameworks call it.
"""
