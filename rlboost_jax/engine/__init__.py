"""The inference engine: paged keys and values, continuous batching, bits that no schedule changes.

`engine`: `Engine` is the whole. `scheduler` decides which rollouts run next on which `pages`;
`step_programs` is what runs on the device, with inputs from `step_inputs`. `engine_parameters`
holds the weights, `device_memory` divides the device. `invariance` checks at a start that rows are
independent. `jetstream`: `SlotEngine`, the same programs behind JetStream's verbs.
"""
