-- Makes those jobs due, one after the other, for which what they wait for has come; first ends the other children of a fan-out of
-- which too many have failed. Stops at a job that waits for its turn, and at one to ask about again.
local answers = {}
for n = 1, tonumber(arg()) do
  local id = arg()
  local row = read(id)
  answers[n] = row and resume_one(id, row) or 'no'
  if answers[n] ~= 'yes' and answers[n] ~= 'no' then break end
end
return aftermath(answers)
