"""The wire format between capture and the lake: segments, packs, envelopes, keys and signatures."""
