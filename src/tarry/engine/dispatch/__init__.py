"""What is due goes out: into topics in bursts, to outlets as flights."""
