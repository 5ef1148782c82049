"""Run the user's own command under the agent, which reports where its processes run out of memory."""
