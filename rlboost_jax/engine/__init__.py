"""The inference engine: paged keys and values, continuous batching, bits that no schedule changes.

`engine`: `Engine` is the whole. `scheduler` decides which rollouts run next on which `pages`;
`programs` is what runs on the device, with inputs from `metadata`. `parameters` holds the weights,
`memory` divides the device. `invariance` checks at a start that rows are independent. `jetstream`:
`SlotEngine`, the same programs behind JetStream's verbs.
"""
