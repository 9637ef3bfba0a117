-- Hears of the doctor's own notification, on a channel where it wakes nobody else.
LISTEN redrive_doctor
