"""GPU-hours: what is booked, used, idle and stranded, by whom, and for how long."""
