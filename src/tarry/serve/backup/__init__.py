"""Backups of a data folder, and restoring one."""
