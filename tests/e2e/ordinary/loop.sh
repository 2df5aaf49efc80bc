#!/usr/bin/env bash
# Does one thing after another until the second file is there.
i=0
until [ -e "$2" ]; do
  sleep 0.1
  i=$((i + 1))
  echo "$i" >> "$1"
  echo "done with $i"
done
echo end >> "$1"
