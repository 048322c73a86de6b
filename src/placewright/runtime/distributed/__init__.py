"""Runs one plan on several processes and hosts: each rank has the devices of one host."""
