"""A project with one app."""

import os
from pathlib import Path

from django import VERSION

FOLDER = Path(os.environ.get("SHOP_FOLDER", "/nowhere"))  # of the test

SECRET_KEY = "for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.contrib.django_shop.urls"
STATIC_URL = "static/"
INSTALLED_APPS = [
    *(["django_tasks"] if VERSION < (6, 0) else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "laneway.contrib.django",
    "tests.contrib.django_shop.shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", FOLDER / "shop.db"),
        "TEST": {"NAME": FOLDER / "test.db"},
    }
}
MIGRATION_MODULES = {"laneway": None} if "SHOP_HAS_NO_MIGRATIONS" in os.environ else {}
LANEWAY = {
    "URL": os.environ.get("SHOP_QUEUE", "sqlite://"),
    "OUTBOX": "default",
    "POLICIES": {"mail.*": {"rate": "1000/s"}},
}
TASKS = {
    "default": {
        "BACKEND": "laneway.contrib.django.backend.LanewayBackend",
        "QUEUES": [],
        "OPTIONS": {"RESULT_TTL": "1h"},
    },
    "outbox": {
        "BACKEND": "laneway.contrib.django.backend.LanewayBackend",
        "OPTIONS": {"OUTBOX": True},
    },
}
