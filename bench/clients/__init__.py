"""The part `clients`: what programs get from client libraries, ours and others', beside the servers that they speak to."""
