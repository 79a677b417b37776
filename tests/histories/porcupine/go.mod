module histories

go 1.18

require github.com/anishathalye/porcupine v1.0.0
