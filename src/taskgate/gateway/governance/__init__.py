"""Governance of calls: rules and policies, approvals, standing grants, pins, and the recheck before a call is sent."""
