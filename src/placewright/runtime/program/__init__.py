"""The program of a captured model: what runs each op, and where its inputs come from."""
