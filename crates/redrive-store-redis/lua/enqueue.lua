-- Adds jobs, each once; repeated after a lost answer it changes nothing.
local answers = {}
for _ = 1, tonumber(arg()) do
  local answer, id = add()
  answers[#answers + 1] = answer
  answers[#answers + 1] = id
end
finish()
return answers
