"""Five targets of real size in plain PyTorch, to probe by name (`oomdoctor probe gpt2`) and to copy from.

Each file keeps to the same plan: constants say what a sample is, `build_model` takes the model's size, and `make_batch`
takes the sample's, so that both can be made small together. Nothing is downloaded.
"""
