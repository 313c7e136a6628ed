"""The page size: fixed when a catalogue is made, and the same in the engine, the mover and the checksums."""

PAGE_BYTES = 65536
