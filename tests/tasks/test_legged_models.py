"""The robots' compiled models against the tables they were written from, and how they stand and fall."""

import mujoco
import numpy as np
import pytest

from tailsafe.tasks.biped_model import MIRRORED, biped_mjcf
from tailsafe.tasks.quadruped_model import JOINTS as LEG_JOINTS
from tailsafe.tasks.quadruped_model import LEGS, quadruped_mjcf
from tests.tasks.biped_tables import BODIES, JOINTS, numbers, rows

QUADRUPED_POSE = [0.0, -0.6435011, 1.2870022] * 4
BIPED_POSE = [0.0, 0.0, 0.6882826, -1.5405409, -1.9] * 2
# hip roll, yaw, pitch, achilles quaternion, knee, shin, tarsus, heel spring, foot crank, plantar rod, foot
LEFT = [
    -6.05507670e-04, -9.46848441e-04, 6.88587941e-01, 9.43366294e-01, 2.79908818e-03, 2.57290345e-02, -3.30741919e-01,
    -1.46884023, 4.99414927e-03, 1.67887314, 1.56343722e-03, -1.55491322, 1.53641059, -1.65963020,
]  # fmt: skip
RIGHT = [
    6.02820781e-04, 9.20671538e-04, 6.88739578e-01, 9.43359484e-01, -2.79838679e-03, -2.57319768e-02, -3.30761119e-01,
    -1.46842817, 4.47926175e-03, 1.67906987, 1.58396908e-03, -1.55491322, 1.53641059, -1.65963020,
]  # fmt: skip


@pytest.fixture(scope="module")
def quadruped():
    return mujoco.MjModel.from_xml_string(quadruped_mjcf())


@pytest.fixture(scope="module")
def biped():
    return mujoco.MjModel.from_xml_string(biped_mjcf())


def full_inertia(model, body):
    """About the centre of mass, in body axes."""
    frame = np.zeros(9)
    mujoco.mju_quat2Mat(frame, model.body(body).iquat)
    frame = frame.reshape(3, 3)
    return frame @ np.diag(model.body(body).inertia) @ frame.T


def test_the_quadruped_has_the_sheets_numbers(quadruped):
    assert quadruped.body_mass.sum() == pytest.approx(25.197)
    assert (quadruped.nq, quadruped.nv, quadruped.nu) == (19, 18, 12)
    order = [mujoco.mj_id2name(quadruped, mujoco.mjtObj.mjOBJ_ACTUATOR, i) for i in range(12)]
    assert order == [f"{joint}_{leg}" for leg in LEGS for joint in LEG_JOINTS]
    assert quadruped.actuator_trnid[:, 0].tolist() == [quadruped.joint(name).id for name in order]
    np.testing.assert_allclose(quadruped.actuator_gainprm[:, 0], 100)
    np.testing.assert_allclose(quadruped.actuator_biasprm[:, :3], [[0, -100, 0]] * 12)
    np.testing.assert_allclose(quadruped.actuator_forcerange, [[-100, 100]] * 12)
    np.testing.assert_allclose(quadruped.dof_damping, [0] * 6 + [5] * 12)
    np.testing.assert_allclose(quadruped.dof_armature, [0] * 6 + [0.01] * 12)
    np.testing.assert_allclose(quadruped.dof_frictionloss, [0] * 6 + [0.02] * 12)
    np.testing.assert_allclose(quadruped.body("abduct_hl").pos, [-0.21935, 0.0875, 0])
    np.testing.assert_allclose(quadruped.body("abduct_hl").ipos, [0.001568, -0.008134, 0.000864])
    np.testing.assert_allclose(quadruped.body("thigh_fr").pos, [0, -0.037, 0])
    np.testing.assert_allclose(quadruped.body("thigh_fr").ipos, [-0.000482, -0.02001, -0.031996])
    frame = [0.999848, 0.00577968, -0.0153453, -0.00595156]
    np.testing.assert_allclose(quadruped.body("thigh_fr").iquat, frame, atol=1e-5)
    np.testing.assert_allclose(quadruped.body("knee_fl").inertia, [0.00619655, 0.00618196, 3.47683e-05])
    np.testing.assert_allclose(quadruped.joint("abduct_fr").range, [-1.0472, 0.872665])
    np.testing.assert_allclose(quadruped.joint("abduct_hl").range, [-0.872665, 1.0472])
    np.testing.assert_allclose(quadruped.joint("knee_hl").axis, [0, -1, 0])


def test_every_shape_of_the_quadruped_meets_the_floor_and_no_other(quadruped):
    meets = (quadruped.geom_contype[:, None] & quadruped.geom_conaffinity[None]) > 0
    meets = meets | meets.T
    floor = quadruped.geom("floor").id
    assert meets[floor].sum() == quadruped.ngeom - 1
    assert meets.sum() == 2 * (quadruped.ngeom - 1)
    assert quadruped.geom_margin[floor] == 0
    np.testing.assert_allclose(np.delete(quadruped.geom_margin, floor), 0.001)


def test_every_body_of_the_biped_has_the_tables_numbers(biped):
    """The model derives the right leg from the left one; the table lists both."""
    assert biped.body_mass.sum() == pytest.approx(33.312)
    assert (biped.nq, biped.nv, biped.nu, biped.neq) == (35, 32, 10, 4)
    table = rows(BODIES)
    assert len(table) == biped.nbody - 1
    for name, parent, offset, quaternion, mass, centre, inertia in table:
        body = biped.body("base" if name == "pelvis" else name)
        carrier = biped.body(int(body.parentid[0])).name
        assert carrier == ("base" if parent == "pelvis" else parent)
        assert body.mass[0] == pytest.approx(float(mass))
        np.testing.assert_allclose(body.pos, numbers(offset), atol=1e-9)
        turned, given = np.zeros(9), np.zeros(9)
        mujoco.mju_quat2Mat(turned, body.quat)
        mujoco.mju_quat2Mat(given, np.array(numbers(quaternion)) / np.linalg.norm(numbers(quaternion)))
        np.testing.assert_allclose(turned, given, atol=1e-7)
        np.testing.assert_allclose(body.ipos, numbers(centre), atol=1e-9)
        xx, yy, zz, xy, xz, yz = numbers(inertia)
        expected = [[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]
        np.testing.assert_allclose(full_inertia(biped, body.name), expected, atol=1e-9)


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_joint_of_the_biped_has_the_tables_numbers(biped, side):
    order = [biped.joint(i).name for i in range(biped.njnt)]
    assert order[:4] == ["base_x", "base_y", "base_z", "base_ball"]
    assert [name for name in order if name.startswith(side)] == [f"{side}_{row[0]}" for row in rows(JOINTS)]
    for name, kind, degrees, damping, armature, stiffness, reference in rows(JOINTS):
        joint = biped.joint(f"{side}_{name}")
        expected = mujoco.mjtJoint.mjJNT_BALL if kind == "ball" else mujoco.mjtJoint.mjJNT_HINGE
        assert joint.type[0] == expected
        assert bool(biped.jnt_limited[joint.id]) == bool(degrees)
        if degrees:
            low, high = numbers(degrees)
            if (side, name) == ("right", "hip_roll"):
                low, high = -high, -low
            np.testing.assert_allclose(np.degrees(joint.range), [low, high])
        np.testing.assert_allclose(joint.damping, float(damping))
        np.testing.assert_allclose(joint.armature, float(armature))
        assert biped.jnt_stiffness[joint.id] == float(stiffness)
        if kind == "hinge":
            np.testing.assert_allclose(joint.axis, [0, 0, 1])
            assert np.degrees(biped.qpos0[joint.qposadr[0]]) == pytest.approx(float(reference))
            assert biped.qpos_spring[joint.qposadr[0]] == 0


def test_the_bipeds_motors_have_the_tables_numbers(biped):
    np.testing.assert_allclose(biped.actuator_gear[:, 0], [25, 25, 16, 16, 50] * 2)
    np.testing.assert_allclose(biped.actuator_forcerange[:, 1], [4.5, 4.5, 12.2, 12.2, 0.9] * 2)


def test_the_bipeds_shapes_meet_the_floor_and_the_other_leg(biped):
    meets = (biped.geom_contype[:, None] & biped.geom_conaffinity[None]) > 0
    meets = meets | meets.T
    name = [biped.geom(i).name for i in range(biped.ngeom)]
    pairs = {frozenset((name[i], name[j])) for i, j in zip(*np.nonzero(np.triu(meets)), strict=True)}
    legs = [[f"{side}_{part}" for part in ("shin", "tarsus", "foot")] for side in ("left", "right")]
    shapes = ["torso", "left_hip_pitch", "right_hip_pitch", *legs[0], *legs[1]]
    assert sorted(name) == sorted(["floor", *shapes])
    across = {frozenset((a, b)) for a in legs[0] for b in legs[1]}
    assert pairs == across | {frozenset(("floor", shape)) for shape in shapes}
    radii = {"torso": 0.15, "left_hip_pitch": 0.08, "right_shin": 0.04, "left_tarsus": 0.04, "right_foot": 0.02}
    for shape, radius in radii.items():
        assert biped.geom(shape).size[0] == radius
    # Capsules by their two ends, in the frames of their bodies.
    ends = {
        "left_hip_pitch": ((0, 0, -0.04), (0.12, 0, -0.0355)),
        "right_hip_pitch": ((0, 0, 0.04), (0.12, 0, 0.0355)),
        "right_tarsus": ((-0.01269, -0.03059, -0.00092), (0.408, -0.04, 0)),
        "left_foot": ((-0.052821, 0.092622, 0), (0.069746, -0.010224, 0)),
    }
    for shape, (first, second) in ends.items():
        geom = biped.geom(shape)
        np.testing.assert_allclose(geom.pos, (np.array(first) + second) / 2, atol=1e-9)
        assert geom.size[1] == pytest.approx(np.linalg.norm(np.subtract(first, second)) / 2)
    floor = biped.geom("floor").id
    np.testing.assert_allclose(biped.geom_solref, [[0.005, 1]] * biped.ngeom)
    np.testing.assert_allclose(biped.geom_margin, 0)
    np.testing.assert_array_equal(np.delete(biped.geom_condim, floor), 6)
    np.testing.assert_allclose(np.delete(biped.geom_friction, floor, axis=0), [[1, 0.005, 0.0001]] * (biped.ngeom - 1))
    np.testing.assert_allclose(biped.geom_friction[floor], [1, 1, 0.0001])
    np.testing.assert_allclose(biped.eq_solref, [[0.005, 1]] * 4)


def test_the_bipeds_loops_close_where_the_sheet_says(biped):
    np.testing.assert_allclose(
        biped.eq_data[:2, :6],
        [[0.35012, 0, 0, 0.05512, 0.006, 0.01484], [0.5012, 0, 0, 0.11943353, -0.0086633449, -0.0015684639]],
        atol=1e-8,
    )
    data = biped_at_reset(biped)
    # The reset pose closes the loops to two tenths of a millimetre.
    assert data.ne == 12
    assert np.abs(data.efc_pos[:12]).max() < 2e-4
    assert data.site("base").xpos[2] == pytest.approx(0.910, abs=5e-4)


def biped_at_reset(model):
    data = mujoco.MjData(model)
    data.qpos[:] = [0, 0, 1.0, 1, 0, 0, 0, *LEFT, *RIGHT]
    mujoco.mj_forward(model, data)
    return data


def tilted(data):
    """A tilt of 90 degrees or more."""
    return data.site("base").xmat[8] <= 0


def test_the_quadruped_stands(quadruped):
    data = mujoco.MjData(quadruped)
    data.qpos[:] = [0, 0, 0.45, 1, 0, 0, 0, *QUADRUPED_POSE]
    target = np.zeros(12)
    for step in range(250 * 10):
        if step % 10 == 0:
            target = 0.75 * target + 0.25 * np.array(QUADRUPED_POSE)
        data.ctrl[:] = target
        mujoco.mj_step(quadruped, data)
    assert data.site("base").xpos[2] == pytest.approx(0.404, abs=0.003)
    assert not tilted(data)


def test_the_bipeds_actuators_are_the_sheets_controllers():
    """Against motors whose controls are computed outside, clipped, and multiplied by the gear."""
    servos, motors = (mujoco.MjModel.from_xml_string(biped_mjcf()) for _ in range(2))
    motors.actuator_gainprm[:, 0] = 1
    motors.actuator_biasprm[:] = 0
    motors.actuator_forcelimited[:] = False
    inside, outside = biped_at_reset(servos), biped_at_reset(motors)
    joints = [motors.joint(motors.actuator(i).name) for i in range(10)]
    positions, velocities = [j.qposadr[0] for j in joints], [j.dofadr[0] for j in joints]
    stiffness, damping = np.array([100, 100, 88, 96, 50] * 2), np.array([10, 10, 8, 9.6, 5] * 2)
    largest = np.array([4.5, 4.5, 12.2, 12.2, 0.9] * 2)
    mirror = np.array([1] * 5 + [-1, -1, 1, 1, 1])
    rng = np.random.default_rng(0)
    clipped = 0
    for _ in range(3):  # stiff loops and contacts let rounding grow: it is 1e-6 after eighty substeps
        target = np.array(BIPED_POSE) + 0.2 * rng.normal(size=10)
        for _ in range(10):
            q, v = mirror * outside.qpos[positions], mirror * outside.qvel[velocities]
            wanted = mirror * (stiffness * (target - q) - damping * v)
            outside.ctrl[:] = np.clip(wanted, -largest, largest)
            clipped += (np.abs(wanted) > largest).sum()
            inside.ctrl[:] = np.array(MIRRORED) * target
            mujoco.mj_step(motors, outside)
            mujoco.mj_step(servos, inside)
            np.testing.assert_allclose(inside.actuator_force, outside.ctrl, atol=1e-6)
    assert 0 < clipped < 300
    np.testing.assert_allclose(inside.qpos, outside.qpos, atol=1e-7)


def test_the_biped_falls_under_zero_action(biped):
    """The sheet saw falls at step 114 and, in another run, after 2.2 s. Before them the site was at 0.893 m."""
    data = biped_at_reset(biped)

    def control_step(target):
        data.ctrl[:] = np.array(MIRRORED) * target
        mujoco.mj_step(biped, data, 10)

    pose = np.array(BIPED_POSE)
    for _ in range(3):
        control_step(pose)
    assert data.site("base").xpos[2] == pytest.approx(0.893, abs=5e-4)
    filtered, steps = np.zeros(10), 0
    while not tilted(data) and steps < 200:
        filtered = 0.5 * filtered + 0.5 * pose
        control_step(filtered)
        steps += 1
    # Ours takes 111 steps: the sheet's 2.2 s with all collision shapes, three steps before its other figure.
    assert 0.02 * steps == pytest.approx(2.2, abs=0.05)
