"""A training command as the target: the user's own script is the trial, and a hook in its Pythons says how it went.

template    the command's words, and the sizes in them
hearing     what a trial's processes said, as one record
listener    where they say it
trial       one trial: start the command, listen, end it
judging     from what was heard to an outcome
following   whether the sizes that were filled in are those that the model got
forks       the process that has imported torch, which later trials are forked from
supervisor  the trials of one probe, in the form that the search asks for them
telling     what there is to say beside the answer
probe       the main job
"""
