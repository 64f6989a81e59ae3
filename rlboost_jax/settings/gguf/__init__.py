"""Checkpoints in llama.cpp's GGUF format, read like folders of the Hugging Face format."""
