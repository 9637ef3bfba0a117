-- Works off marks of jobs below which something is left to end.
marked = true
work_off()
return aftermath({})
