"""Scheduling: ranks, reachability and list schedules, without a simulator."""
