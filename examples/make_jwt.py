"""Sign a JWT that is good for an hour: python make_jwt.py SECRET_FILE SUBJECT [CLAIM=VALUE …]."""

import sys
import time
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import OctKey

secret_file, subject, *more = sys.argv[1:]
claims = {"sub": subject, "exp": int(time.time()) + 3600} | dict(each.split("=", 1) for each in more)  # noqa: TID251
secret = OctKey.import_key(Path(secret_file).read_text("utf-8-sig").strip())
print(jwt.encode({"alg": "HS256"}, claims, secret))
