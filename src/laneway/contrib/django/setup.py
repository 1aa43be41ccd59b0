"""Import this module first in a process that Django has not been set up in."""

import django
from django.apps import apps

if not apps.ready:
    django.setup()
