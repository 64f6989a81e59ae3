"""Chat rendering and parsing: a conversation's next prompt, and the content of a sampled turn.

`conversation` is the interface, `conversation_setup` makes one and proves it.
"""
