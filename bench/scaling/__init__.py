"""How the search scales: every engine on this machine in turns, and more machines by a simulation."""
