"""What an object is made of, in which format each part of it is kept, and the files that hold it so (docs/formats.md)."""
