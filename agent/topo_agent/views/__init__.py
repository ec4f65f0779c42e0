"""Topology -> text or plain data. Pure: nothing here reads a machine or writes to the world."""
