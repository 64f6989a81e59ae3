"""The decoder that learner and engine both run, and its parameters.

`decoder`: the Flax NNX modules. `forward`: how they run on plain `params`. `attention`, `experts`,
`rope` and `products` are their parts; `lora` and `adapters` what is trained of a frozen model.
`checkpoint_reader` and `checkpoint_writer`: Hugging Face's files. `parameter_sharding` and
`tensor_parallel`: several devices.
"""
