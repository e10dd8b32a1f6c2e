"""The wall: what comes from outside is read here and nowhere else, so that each reader has the same bounds.

numbers.py   a whole number that somebody wrote as text: headers, shapes, options
documents.py JSON of others: metadata, scales, records of runs, requests, files of jobs
lines.py     text files of others: lists, labels, tokens, references
arrays.py    .npy, .npz and pictures: any exception of a reader becomes an error of the package
outputs.py   files that a command writes: never one that it reads

tests/io/foreign/test_wall.py reads the sources: json.loads, np.load and Image.open stand in this folder alone.
"""
