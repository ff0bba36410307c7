"""Telemetry: figures, the steps of traces, and errors told without what somebody sent."""
