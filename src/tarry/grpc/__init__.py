"""gRPC over HTTP/2, the server's side: frames, header compression, streams, calls. Pure; ADR 0010 says why it is our own."""
