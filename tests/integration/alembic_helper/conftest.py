"""`from fencepost.alembic import protect`, in projects with a synchronous driver and with an asynchronous one."""

import io
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from tests.integration.alembic_helper.project import CREATE, MODELS, PROTECT, Project
from tests.support.interleave import Connect, Connection


@pytest.fixture(params=["psycopg"])
async def project(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Project:
    """Give a project on a migrated database: `alembic init`, its models, the hook, two revisions."""
    driver, _, template = request.param.partition(" ")
    url = database.replace("postgresql://", f"postgresql+{driver}://")
    config = Config(tmp_path / "alembic.ini", stdout=io.StringIO())
    command.init(config, str(tmp_path / "migrations"), template=template or "generic")
    ini = (tmp_path / "alembic.ini").read_text()
    (tmp_path / "alembic.ini").write_text(
        ini.replace("driver://user:pass@localhost/dbname", url.replace("%", "%%")).replace("[logger_", "[unused_")
    )
    project = Project(tmp_path)
    project.edit("fileConfig(config.config_file_name)", "pass")
    project.edit(
        "target_metadata = None",
        f"namespace = {{}}\nexec({MODELS!r}, namespace)\ntarget_metadata = namespace['metadata']\n"
        "from fencepost.alembic import include_name, include_object",
    )
    project.edit(
        "connection=connection, target_metadata=target_metadata",
        "connection=connection, target_metadata=target_metadata, include_object=include_object, include_schemas=True,"
        " include_name=include_name",
    )
    project.revise(1, CREATE, '    op.drop_table("items")\n    op.drop_table("orders")')
    project.revise(2, PROTECT, '    unprotect(op, "items")\n    unprotect(op, "orders")')
    return project


@pytest.fixture
async def db(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    return connection
