# Makes so many rows, and reads them back: what checking.sh and compare.sh run as Python's work.
import json, re, sys
rows = [{"a": i, "b": str(i) * 3, "c": list(range(i % 20))} for i in range(int(sys.argv[1]))]
text = json.dumps(rows)
print(len(text), len(json.loads(text)), len(re.findall(r'"b": "(\d+)"', text)))
