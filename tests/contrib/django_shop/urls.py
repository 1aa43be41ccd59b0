"""The project's URLs."""

from django.contrib import admin
from django.urls import path

from tests.contrib.django_shop.shop import views

urlpatterns = [path("admin/", admin.site.urls), path("order/", views.order)]
