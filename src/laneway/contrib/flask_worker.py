"""The application of a Flask program, for processes that `flask laneway worker` starts."""

import os

from flask.cli import ScriptInfo

from laneway.contrib.flask import FlaskLaneway

flask_app = ScriptInfo(os.environ.get("FLASK_APP")).load_app()
laneway: FlaskLaneway = flask_app.extensions["laneway"]
