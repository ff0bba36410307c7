"""The Dapr door: pub/sub as a Dapr sidecar serves it, with scheduled publish."""
