"""A training command as the target: the user's own script is the trial, and a hook in its Pythons says how it went.

- `template`: the command's words, and the sizes in them
- `messages`: what the hook says, field by field; `hearing`: what a trial's processes said, as one record
- `room`: a directory of ours for sockets; `listener`: the socket where they say it
- `trial`: one trial: start the command, listen, end it
- `judging`: from what was heard to an outcome; `following`: whether the model got the sizes that were filled in
- `forks`: the process that has imported torch, which later trials are forked from
- `ahead`: a trial that is begun before it is asked for; `noting`: what trials showed besides their outcomes
- `uses`, `witness`: what the command used, for an answer that is to be used again
- `supervisor`: the trials of one probe, in the form that the search asks for them
- `telling`: what there is to say beside the answer; `probe`: the main job
"""
