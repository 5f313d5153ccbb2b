"""Makes Autobahn's cases importable on Python 3: convert.py SOURCE_FOLDER DESTINATION_FOLDER.

The cases are Python 2, where text is bytes. fissix changes the syntax. This script changes the few places that use
strings as bytes: there, each character of a string is one byte (Latin-1), and the driver encodes such strings for the
wire.
"""

import pathlib
import re
import subprocess
import sys

source, destination = (pathlib.Path(name) for name in sys.argv[1:3])
package = destination / "cases"
package.mkdir(parents=True)
for file in sorted((source / "autobahntestsuite" / "case").glob("*.py")):
    text = file.read_text(encoding="latin-1")
    # Latin-1 characters, not bytes.
    if file.name == "case6_x_x.py":
        text = text.replace('.encode("utf-8")', '.encode("utf-8").decode("latin-1")')
        text = re.sub(r"\.validate\((.*?)\)\n", r".validate((\1).encode('latin-1'))\n", text)
    text = re.sub(r"binascii\.b2a_hex\(", "(lambda text: (text if isinstance(text, bytes) else text.encode('latin-1')).hex())(", text)
    # Python 3's method resolution order does not allow object before a subclass of it.
    text = text.replace("(object, Case, )", "(Case, )")
    text = text.replace("len(self.payload) / ", "len(self.payload) // ")
    data = str((source / "autobahntestsuite" / "testdata").resolve())
    text = re.sub(r'pkg_resources\.resource_filename\("autobahntestsuite", "testdata/%s" % (.*?\[\'file\'\])\)', rf"'{data}/' + \1", text)
    text = text.replace("import copy, os, pkg_resources,", "import copy, os,")
    text = text.replace("from zope.interface import implements\n", "").replace("   implements(interfaces.IPushProducer)\n", "")
    (package / file.name).write_text(text)
(destination / "caseset.py").write_text((source / "autobahntestsuite" / "caseset.py").read_text())
# In Python 3, "import" does not look beside the importing file.
done = subprocess.run(
    [sys.executable, "-m", "fissix", "-w", "-n", "-j", "2", str(package), str(destination / "caseset.py")],
    capture_output=True, text=True,
)
if done.returncode != 0:
    sys.exit(done.stderr)
