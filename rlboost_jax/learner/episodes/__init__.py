"""Episodes: sequences from the manager become judged groups with advantages.

`assembly`: `DeliveredEpisode`, put together turn by turn. `collector`: finished episodes of a step,
judged, in their groups. `trajectory`: `Trajectory`, as updates take it. `estimates`: advantages.
`shown_samples`: what a person is shown.
"""
