"""The engine's turns on an asyncio loop, and the threads beside it."""
