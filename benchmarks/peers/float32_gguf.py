"""A GGUF file's model in float32, for peers that read such files."""

from pathlib import Path

FILE = "float32.gguf"


def write_float32(source: Path, target: Path) -> None:
    """Copy a GGUF file with every tensor dequantised by the package gguf."""
    import gguf

    reader = gguf.GGUFReader(source)
    name = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, name)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
