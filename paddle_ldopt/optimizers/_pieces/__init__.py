"""A parameter in pieces: sharding version 2, tensor parallel."""
